"""What chapter 4, on tensor parallelism, calls: lessons, exercises, a cover and a wall clock."""
