from lib.draw import collective

collective("reduce_scatter", "all_gather")
