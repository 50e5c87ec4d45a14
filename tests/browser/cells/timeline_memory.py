from lib.draw import timeline
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import zb_h1

costs = Costs(1e-3, 1e-3, 1e-3, send=1e-4, activation=50_000_000, kept=20_000_000)
timeline(play(zb_h1(4, 8), costs).ledger, memory=True)
