"""Slow motion inside a rank: the compute clock, the communication lanes, the roofline."""
