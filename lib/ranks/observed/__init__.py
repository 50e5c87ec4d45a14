"""Inside a rank: process groups whose every operation is noted, compared and recorded."""
