from lib.draw import versions
from lib.predict.pipeline.schedules import pipedream
from lib.predict.pipeline.versions import weight_versions

versions(weight_versions(pipedream(4, 12), "latest"))
