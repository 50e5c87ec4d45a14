from lib.draw import timeline
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import one_f_one_b

paper = play(one_f_one_b(4, 8), Costs(1e-3, 1e-3, 1e-3, send=1e-4)).ledger
slow = play(one_f_one_b(4, 8), Costs([1e-3, 1.5e-3, 1e-3, 1e-3], 1e-3, 1e-3, send=3e-4)).ledger
timeline(slow, over=paper)
