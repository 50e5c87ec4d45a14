"""What runs inside a rank: the worker, the call that it carries out, the recorder."""
