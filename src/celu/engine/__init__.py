"""The training engine: exchange rounds, local steps and the order in which a party runs them.

`schedule`: the order of work: a function of the settings and the round, never of timing
`host_program`: a host's training loop
`guest_program`: the guest's training loop
`trainer`: what the trainers of a guest and of a host share
`host_trainer`: a host's model, cache and rounds in flight: one exchange round and one local step
`host_state`: what a host has, and how it is saved, loaded and rolled back
`in_flight`: a host's rounds whose Z was sent and whose dZ has not arrived
`guest_trainer`: the guest's models and cache: one exchange round and one local step
`guest_state`: what the guest has, and how it is saved, loaded and rolled back
`guest_model`: the forward and backward pass of a guest's bottom and top
`guest_loss`: the guest's loss of a batch
`row_weights`: how much each training row counts in that loss
`coding`: encodes tensors into messages with the contract's codecs, and decodes them
`optimizer`: a party's optimizer, built from the contract's settings
`learning_rate`: the learning rates of a party in each round
`gradients`: clipping and weight decay, between the backward pass and the update
`update_rules`: AdaGrad and SGD with fewer operations than torch's, and torch's Adam
`gpu_update_rules`: the same rules on a GPU, with nothing read back from it
`gpu_kernels`: updates of weights on a GPU, as Triton kernels
`graphs`: steps of a trainer that are captured as CUDA graphs and replayed
`step_snapshot`: what a step may change, to execute it twice from one state
`device`: the device that a party computes on
`randomness`: seeds for the randomness inside modules, such as dropout
`evaluation`: evaluations in training: scores, and the contract's target
`held_out`: the metrics of held-out rows that a run reports
`guest_scoring`: scores of held-out rows at the guest, and their metrics
`scores`: the scores of some held-out rows
`history`: the evaluations of a run so far
`best`: the round and the weights of the best model so far
`plan`: which segment comes next, and from which state
`auto`: `method = "auto"`: chooses W, R, depth and codec during training
`link_tuning`: the tuning that saturates the link
`cost_model`: the time of a round on the link and at the parties
`outcome`: scores and timings of a segment, from which a plan chooses the next
`noise`: the contract's noise on Z and dZ
`twin`: a copy of the guest's models that learns from randomized labels, and answers hosts
`twin_metrics`: metrics against randomized labels, corrected for the labels that changed
`promises`: what a contract's defences promise, a sentence each
`setup`: what a session starts with: the party checked, the schedule, the contract
`lazy_modules`: sizes of lazy modules, such as `nn.LazyLinear`, from one row
`extension`: more rounds for a run that was planned shorter
`state`: a trainer's state in memory, to roll back to
`state_dict`: a trainer's state as named tensors, for checkpoints
`checkpoint_tensors`: the tensors of a loaded checkpoint, checked against the live model
`checkpointing`: when a party takes checkpoints, and how it resumes from one
`rank_checkpoints`: the checkpoints of a party with several ranks
`observer`: measures a training loop and emits its events
`round_report`: the event of a round, whose numbers a device may still compute
`readback`: numbers for reports, copied from a device without waiting for it
`spans`: what a party's compute thread did recently, and when
`auditing`: which rows a session records, and what is attacked at its end
`naming`: the end of a run: digests of all weights, which name the model
"""
