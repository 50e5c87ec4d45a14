"""What chapter 11 trains and shows: optimizers that keep less than Adam."""
