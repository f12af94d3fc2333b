"""Weights over several devices.

loading         open the folder of a network, to read weights shard by shard
rules           which weight is split along which dimension, and why
shards          place weights, count bytes and collectives
"""
