"""Records when weights were copied, decoded, kept and evicted, and shows it.

journal    notes copies, decodes, stalls, kept and evicted weights while a model runs
recording  a finished recording: summary, page, JSON, Perfetto trace
summary    its figures: link use, stalls and their reasons, evictions
page       its HTML page: passes, stalls, the link, every weight over time
"""
