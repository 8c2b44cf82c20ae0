"""Messages between two parties, and the carriers that transport them.

`message`: the kinds of message, and the checks of what may arrive
`link`: the link between two parties: four methods
`memory`: links between parties in one process
`wire`: messages as bytes: a fixed header, then a tensor or a small JSON object
`stream`: a link over connections that break and are replaced
`delivery`: delivers each message once and in order
`connection`: one connection of a link, between a carrier's two threads and the link
`waits`: what the threads of one link wait for
`uptime`: since when a link is up or down
`reconnect`: when a silent connection counts as dead, and when to try again
`connect`: opens the links of a party to all its peers, and reconnects them
`sessions`: one session after another with each peer
`ask`: asks over a link, for serving: the host's side, and the format
`asker`: the guest's side of asks: many threads ask at once
`carrier`: the interface of a carrier: a listener, an outgoing connection, the admission of clients
`grpc_carrier`: the gRPC carrier
`stripes`: one connection over several gRPC streams
`websocket_carrier`: the WebSocket carrier, for gateways without HTTP/2
`websocket_threads`: the threads between a connection and a WebSocket in an event loop
`websocket_socket`: bounds on what a WebSocket's other end makes us buffer and wait for
`websocket_clients`: bounds the open connections of a WebSocket listener
`tls`: mutual TLS 1.3 with one certificate authority for each peer
`handshakes`: notices clients whose TLS handshake fails
`preflight`: checks a peer's address before a carrier uses it
`inner_tls`: mutual TLS between two parties, inside a connection through a gateway
`inner_tls_engine`: its protocol without I/O: byte strings in, byte strings out
`emulation`: emulates a network link: bandwidth, delay, jitter, outages
`virtual_clock`: how long a run would take on a link, without waiting for it
"""
