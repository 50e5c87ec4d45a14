from lib.draw import versions
from lib.predict.schedule import pipedream
from lib.predict.versions import weight_versions

versions(weight_versions(pipedream(4, 12), "latest"))
