"""Floor 0: the ledger, which has one row for each recorded or predicted operation of a rank."""

from lib.ledger.ledger import LANES, NAMES, SOURCES, Ledger, Row

__all__ = ["LANES", "NAMES", "SOURCES", "Ledger", "Row"]
