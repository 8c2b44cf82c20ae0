"""From settings files to a running party: loading, connecting, training, aligning, diagnosing.

`training`: `celu run` and `celu.run`: one party's training over the network
`loading`: a party's rows and modules, from the files that `party.toml` names
`endpoint`: the network settings of `party.toml`, as the transport takes them
`ready`: what a run checks of its party before it waits for peers
`starting`: the weights of an earlier run, to start from
`restarts`: how often peers may restart without progress
`recording`: records the end of a run in its folder
`auditing`: the audit that `party.toml` asks for
`label_budget`: what a run spends of the privacy of the guest's labels
`precision`: how exact matrix products are while parties train
`ranks`: the processes of a party that torchrun started: rank 0 leads, the others follow
`same_party`: what all ranks must have alike: the settings, the contract, the store
`once`: options that apply once, although torchrun passes them at every restart
`sharding`: which embedding tables are sharded over the ranks
`checking`: `celu check`: what can be checked before the peers are there
`trial`: one batch of a party's rows through its models
`memory_estimate`: estimates the memory of a run from one batch
`aligning`: `celu align`: from a party's store to its alignment
`diagnosing`: `celu doctor`: measure the links and gather facts for advice
`baseline`: `celu baseline`: the guest alone
`predicting`: `celu predict`: one party's part in a prediction
`predict_files`: the files of one party of a prediction
`serving`: `celu serve`: a party that serves until it is stopped
`folder`: the run folder that `party.toml` names
`memory`: the C library's allocator, tuned for training
`blas`: the threads of NumPy's linear algebra, limited as PyTorch's are
"""
