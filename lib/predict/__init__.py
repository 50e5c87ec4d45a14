"""Paper and pencil: what a run should move, hold and take, before any rank starts."""
