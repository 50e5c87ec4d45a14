from lib.draw import collective
from lib.predict.rounds import ring

collective(ring(4))
