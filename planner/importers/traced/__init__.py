"""Programs of tensors (ONNX, torch) as networks.

A front end writes its graph in one small vocabulary (`program`); `conversion` follows every tensor as a view of a layer's output
(`views`), so that reshapes and transposes cost nothing until someone needs another order, and finds attention, normalisations and gates in
the operations that they are written in.
"""
