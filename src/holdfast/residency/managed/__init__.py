"""A module under a budget: its weights come and go while it runs.

manage          `manage` and `unmanage`
managed         `Managed`: a call from its beginning to its end, with or without a plan
group           several modules under one budget, and which one is evicted for another
weight_set      the weights: moved into slabs, copied to the device, restored
schedule        when to plan again and which of the plans to use; the predicted time of a call
layers          what happens when a layer begins and ends
loose_weights   weights on the device outside of any plan
call_memory     memory that calls need beside weights, by signature
workspaces      memory that libraries take for convolutions
op_guard        watches operations, and repeats one that ran out of memory
occupancy       which thread is inside
trace           the order of layers in a pass, and their times
lockstep        several calls in step, so that weights cross the link once
lora            LoRA merged into weights that stay, beside those that stream
min_budget      the smallest budget for a call that did not fit
module_hooks    hooks on layers, state dicts, `.to()` and copies of the module
"""
