from lib.draw import curve
from lib.predict.collectives.formulas import fit
from lib.predict.hardware import sweep, sweeps

found = [sweep(name) for name in sweeps()[:2]]
points = {s.name: (s.nbytes, s.seconds) for s in found}
curve(points, {s.name: fit(s.nbytes, s.seconds) for s in found})
