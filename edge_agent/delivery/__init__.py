"""A model's way from the broker to the frames, and back.

What arrives, in the thread that takes orders:

transfers   whatever comes under `in/` for models, and to whom of these it goes
offers      a package is offered: refused, begun, or kept until the clock is set
admission   which packages may come in
receiving   lists and blocks, until all of a package is durable on the disk
transfer    one package on its way, and what is asked for next
flusher     makes blocks durable, then acknowledges them
whole       a package in one message
handover    what is complete goes to the deployer
replies     what the sender is told meanwhile

What becomes of it, in the deployer's thread:

deployer    one candidate after the other, all the way: the steps and their order
candidate   a version on its way to being live
underway    which these are, and how far
bounds      what is asked of a candidate, and whether it gives it
proving     its trial: apart in a child (trial, judge, shadow), then beside the incumbent
expecting   whether that begins while the package is arriving (ahead, arriving)
memory      whether there is room for one more model
swap        one version in another's place
probation   versions that serve and are still watched
retreat     back to the version before
commands    rollback, activate, delete
recovery    what an end of the agent leaves under way
marks       what the store holds of a version on trial
reports     what is said of candidates, and how the last ones ended
"""
