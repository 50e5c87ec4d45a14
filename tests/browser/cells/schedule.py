from lib.draw import schedule

schedule("1f1b", stages=4, microbatches=8)
