from lib.draw import keep
from lib.predict.recompute import BlockCost

costs = [BlockCost(2 * 10**6, 14 * 10**6, 0.004)] * 4 + [BlockCost(10**6, 3 * 10**6, 0.006)] * 4
keep(costs, "budget", budget=50 * 10**6)
