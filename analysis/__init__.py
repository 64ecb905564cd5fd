"""Figures and tables of the paper from run directories; one module and one notebook per research question.

figures(study)   {file name: matplotlib figure}, in analysis/rqN.py; make_figures.py finds it beside rq/rqN.py
"""
