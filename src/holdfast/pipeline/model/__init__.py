"""From the name of a model to components that are loaded where they run.

sources          finds the files of a model: built-in, folder, single file or hub id
hub              downloads from the Hugging Face hub
single_file      recognizes single .safetensors files and finds what completes them
placement        picks device, dtype and budget for every stage; loads nothing
assembly         loads all components and builds the three stages
components       loads one component with diffusers or transformers, weights into slabs
single_weights   builds a network from a single file
library_errors   turns errors of other libraries into ours
quick_imports    imports diffusers and transformers without what a run does not use
quiet            silences the logging of diffusers and transformers
"""
