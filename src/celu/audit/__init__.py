"""What a run leaked: messages are recorded in training, and attacked after it.

`sample`: which training rows are recorded
`recorder`: records the messages of these rows during training, in bounded memory
`canaries`: training rows whose labels are random, drawn with the audit's key
`direct`: attacks on labels that compute one number from a row's dZ
`learner`: attacks on labels that learn from known labels
`mlp`: the small network that attacks train
`completion`: an attack by a host that knows a few labels and trains a head on its own Z
`leak`: how much the scores of an attack say about labels
`labels`: the guest's audit: what each host could learn of the labels from dZ
`decoder`: an attack on columns: a network learns to compute them from Z
`columns`: a host's audit: what the guest could learn of its columns from Z
`result`: the result of an audit, `audit.json`
`tables`: an audit as tables of text, for the terminal and for pages
`threads`: limits PyTorch to one thread during an audit
"""
