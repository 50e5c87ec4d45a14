from lib.draw import collective
from lib.predict.collectives.plans import ring

collective(ring(4))
