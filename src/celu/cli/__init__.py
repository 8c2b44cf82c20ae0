"""The command line: one file per command.

`app`: all commands, and the one place that turns an error into a message and an exit code
`data`: `celu data`: write a built-in data set with settings files
`certs`: `celu certs`: make a certificate authority, or a party's certificate
`prepare`: `celu prepare`: convert raw files to stores
`inspect`: `celu inspect`: show what a store holds
`split`: `celu split`: split one table into several parties' tables
`align`: `celu align`: find the rows that all parties have
`models`: `celu models`: list the built-in models and losses
`check`: `celu check`: check one party's files before its peers are there
`doctor`: `celu doctor`: measure the link, and print what to change
`run`: `celu run`: train one party over the network
`simulate`: `celu simulate`: train all parties in this process
`tune`: `celu tune`: search the settings of a contract
`baseline`: `celu baseline`: what the guest reaches alone
`report`: `celu report`: an HTML report of runs
`dashboard`: `celu dashboard`: live runs in a browser
`audit`: `celu audit`: what a run leaked
`export`: `celu export`: one party's part of a trained model, as a folder
`predict`: `celu predict`: score rows with a trained model
`evaluate`: `celu evaluate`: how good a model's scores are
`serve`: `celu serve`: score single rows on request
`demo`: `celu demo`: five ways to train on real data, with real processes
`bench`: `celu bench`: run a bench of the source checkout
`version`: `celu version`: the versions that a bug report needs
`console`: the console of all commands: no text can control the terminal
`progress`: a run in the terminal, as a bar or as lines
`counting`: a count in the terminal, while parties align or predict
`interrupt`: what Ctrl-C does during a run
`monitors`: the trackers and the dashboard of a run, whose failures never end it
"""
