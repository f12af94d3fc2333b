"""Devices that a model is spread over, on one host or several.

device_holders  which processes have a device open
hosts           several processes as one cluster (`jax.distributed`)
mesh            the devices in named axes
rendezvous      hosts find each other before jax starts
"""
