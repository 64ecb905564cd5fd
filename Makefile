.DEFAULT_GOAL := help

.PHONY: help install test slow lint docs main figures benchmarks

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

install: ## igrad and its test tools, into the active environment
	pip install -e '.[test]'

test: ## the default suite: under ten minutes on two cores
	pytest -n 2

slow: ## the tests that take minutes
	pytest -m slow

lint: ## style and likely mistakes
	ruff check . && ruff format --check .

docs: ## docs/configuration.md from the comments in conf/ and igrad/
	python -m igrad.config_reference > docs/configuration.new && mv docs/configuration.new docs/configuration.md

main: ## three runs of RQ3 on the embedded model
	python run.py +rq=rq3 release_period=4,8,16 -m

figures: ## figures and tables of every study in outputs/
	python analysis/make_figures.py

benchmarks: ## selection, bytes on an interface, growth with the ranks: three minutes, with nothing else running
	python -m benchmarks.selection
	python -m benchmarks.wire
	python -m benchmarks.growth
