from lib.draw import routing

routing([[9, 3, 2, 2], [11, 1, 2, 2], [8, 4, 3, 1], [12, 2, 1, 1]], capacity=1.25)
