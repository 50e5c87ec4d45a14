"""Optimizers written out: Adam, and those that keep less than Adam."""

from lib.single.optimizers.adafactor import Adafactor
from lib.single.optimizers.adam import Adam, AdamW
from lib.single.optimizers.adam_8bit import Adam8bit
from lib.single.optimizers.muon import Muon, split_parameters
from lib.single.optimizers.sm3 import SM3

__all__ = ["SM3", "Adafactor", "Adam", "Adam8bit", "AdamW", "Muon", "split_parameters"]
