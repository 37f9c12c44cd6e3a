"""The planner for Python programs: the questions of the command line as functions, with the same names, and typed answers.

Everything here is reached through ``import planner`` (`planner.optimize`, `planner.Plan`, ...), which imports a module of this package
on first use. The functions only translate: Python values to the words of the options, objects to files, answers to objects that print.
What is searched and predicted is what the command line searches and predicts, by the same code.
"""
