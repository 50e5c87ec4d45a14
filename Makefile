# Many Ranks, One Model. Two commands do everything: `make lab` and `make test`.
#   PYTHON=/path/to/python3   which Python makes .venv (the first time; remove .venv to change it)
PY := .venv/bin/python
.DEFAULT_GOAL := help
.PHONY: help lab test test-gpu run refresh book readme bench doctor tidy ready

help: ## say what each command does
	@awk -F ':[^#]*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

lab: ready ## open the course in JupyterLab; AGAIN=00 begins a chapter anew, ARGS="--port 9000"
	@$(PY) -m lib.course.tools.lab $(if $(AGAIN),--again $(AGAIN)) $(ARGS)

test: ready ## everything: lint, house rules, tests, chapters, the book; ONLY=pipeline for one family
	@$(PY) -m lib.course.tools.steps $(if $(ONLY),--only $(ONLY))

test-gpu: ready ## ranks and chapters on the GPUs that are there; without any, on four pretended ones
	@$(PY) -m lib.course.tools.steps test-gpu

run: ready ## run every chapter without a browser; CHAPTER=00 for one
	@$(PY) -m lib.course.tools.run $(CHAPTER)

refresh: ready ## run chapters and store their outputs; CHAPTER=00 for one, FRESH=1 redraws all, TIMES=1 stores times alone
	@$(PY) -m lib.course.tools.refresh $(if $(FRESH),--fresh) $(if $(TIMES),--seconds) $(CHAPTER)

book: ready ## build the book into _build/book, warnings are errors
	@$(PY) -m lib.course.tools.steps book

readme: ready ## write the table of chapters in README.md from book.yml
	@$(PY) -m lib.course.tools.book

bench: ready ## measure against PyTorch's own, the peers that are installed, and predictions
	@$(PY) tests/bench.py $(ARGS)

doctor: ## look at this machine: Python, PyTorch, GPUs, memory, ports; what to do about each
	@python=$$(sh lib/course/tools/setup.sh --which "$(PYTHON)") && "$$python" lib/course/tools/doctor.py

tidy: ready ## let ruff format and mend lib, tests and chapters
	@$(PY) -m lib.course.tools.steps tidy

ready:
	@sh lib/course/tools/setup.sh "$(PYTHON)"
