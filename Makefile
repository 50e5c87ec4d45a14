# Many Ranks, One Model. Two commands do everything: `make lab` and `make test`.
#   PYTHON=/path/to/python3   which Python makes .venv (the first time; remove .venv to change it)
PY := .venv/bin/python
.DEFAULT_GOAL := help
.PHONY: help lab test run refresh book readme bench doctor tidy ready

help: ## say what each command does
	@awk -F ':[^#]*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

lab: ready ## open chapter 0 in JupyterLab; ARGS="--port 9000" go to JupyterLab
	@$(PY) -m lib.course.lab $(ARGS)

test: ready ## everything: lint, house rules, tests on ranks, every chapter, the book
	@$(PY) -m lib.course.steps

run: ready ## run every chapter without a browser; CHAPTER=00 for one
	@$(PY) -m lib.course.run $(CHAPTER)

refresh: ready ## run chapters and store their outputs; CHAPTER=00 for one, FRESH=1 redraws all
	@$(PY) -m lib.course.refresh $(if $(FRESH),--fresh) $(CHAPTER)

book: ready ## build the book into _build/book, warnings are errors
	@$(PY) -m lib.course.steps book

readme: ready ## write the table of chapters in README.md from book.yml
	@$(PY) -m lib.course.book

bench: ready ## measure against PyTorch's own, the peers that are installed, and paper
	@$(PY) tests/bench.py $(ARGS)

doctor: ## look at this machine: Python, PyTorch, GPUs, memory, ports; what to do about each
	@python=$$(sh lib/course/setup.sh --which "$(PYTHON)") && "$$python" lib/course/doctor.py

tidy: ready ## let ruff format and mend lib, tests and chapters
	@$(PY) -m lib.course.steps tidy

ready:
	@sh lib/course/setup.sh "$(PYTHON)"
