"""`fit` predicts whether a model runs under a budget, and how fast, without loading its weights.

fit         `fit` itself: from a model, a budget and a shape to an answer
answer      the answer: figures, and their text
networks    finds the networks of a path and builds them without weights
recognise   recognises the network of a single file by tensor names and shapes
shapes      makes the inputs of a network for an image size
profile     one pass of a module: weights, layers, operations, memory
dry_run     runs a copy of a module and records its operations and memory
shadow      copies a module with other tensors, on meta or with random weights
rates       how long layers take on a device: measured, estimated or cached
case        one network with its times: the plan and figures of any budget
best_dtype  chooses the dtype for a network on a device
packable    predicts the size of packed weights
"""
