"""Trained models in use: export, prediction and serving.

`model`: one party's part of a trained model, in memory
`export`: writes one party's part as a folder of its own
`model_folder`: reads such a folder
`card`: `card.md` in it: what the model is, and how it was trained
`runtimes`: a party's modules for other runtimes: `torch.export` and ONNX
`trained`: the model of a simulation, from the modules that were trained in place
`coding`: encodes and decodes Z with the codec of the serving contract
`rows`: rows to score, chunk by chunk
`predict_session`: one party's part in a prediction over the network
`scoring_parts`: the finished parts of a prediction, from which it resumes
`predicting`: `celu.predict`: scores of rows in one process, from all parts of a model
`http_server`: the HTTP server of a serving guest: its socket, TLS, token and limits
`http`: its routes: the Open Inference Protocol, health and metrics
`inference_protocol`: the Open Inference Protocol: requests as Python values, answers as JSON
`loop_scoring`: scores small requests on the event loop of the HTTP server
`batching`: answers other requests on a few threads, several together
`inference`: from requests to scores: finds rows, asks hosts, runs the model, or falls back
`few_rows`: a model for the few rows of a request
`row_index`: a party's rows by id, by tag, and by their numbers in the alignment
`encoding`: encodes raw rows as `celu prepare` does
`lookup`: current features of rows, from a company's own feature service
`handshake`: how a session of `celu serve` begins
`announcement`: the message in which parties say which models they hold and want
`host_link`: the guest's session with one host, whichever way its Z comes
`ask_rows`: how an ask names rows
`asking`: the guest asks a host for the Z of single rows
`answering`: a host answers the guest's asks with Z, within limits
`quota`: how many rows a host answers
`cache`: a cache of Z at the guest
`pushing`: `mode = "pushed"`: a host sends the Z of all aligned rows in advance
`pushed_scores`: scores of all aligned rows, computed in advance from pushed Z
`model_shelf`: the exported models in a folder, and the few that are loaded
`rollout`: which model the guest serves: the newest one that all parties hold
`serve_metrics`: metrics of a serving guest in the Prometheus text format
"""
