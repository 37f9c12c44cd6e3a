"""PALEO's cost model, first release (commit b12c04b, December 2016), as a preset.

Source: H. Qi, E. R. Sparks, A. Talwalkar, "Paleo: A Performance Model for Deep Neural Networks", ICLR 2017, and its program
(github.com/TalwalkarLab/paleo). The first release made the paper's tables; what it lacks (inner products, transposed convolutions)
follows the last one (commit 984bbf5). Its defects are kept: this preset is for comparison, `costmodel.kernels.roofline` repairs them.
"""
