"""Delivery: a model's way from the broker to the pipelines, and back.

protocol        what sender and receiver agree on, and the topic of a transfer's status
sender          the sending side, used by `edge-agent push`
local_requests  how `edge-agent add` asks a running agent to try a version

receive         packages as they arrive, in the thread that takes requests:
  router          what arrives under `in/` for models, by topic
  offers          a package is offered: begun, answered, rejected, or kept until the clock is set
  admission       which packages may come in
  blocks          block lists and blocks, until all of a package is durable on the disk
  transfer        the state of one transfer, and what is requested next
  flusher         makes blocks durable, then acknowledges them
  single_message  a package in one message

rollout         from a complete package to the version that serves, in the deployer's thread:
  deployer        the steps and their order, one candidate after the other
  ledger          every candidate, its phase, the table of phases, and how the last one ended
  trial           step 1: loaded and run in a child process
  shadow          step 2: run beside the version that serves, on its frames
  swap            step 3: exchanged for the version that serves
  probation       step 4: watched while it serves
  acceptance      the bounds that a candidate must keep, and the watch of one on probation
  rollback        back to the version before
  commands        rollback, activate, delete
  recovery        what the next start makes of candidates after a kill or an orderly end

trial           the trial in a child process: the agent's side, the child, the early trial
early           a model that runs in that child while it arrives
"""
