"""One simulator: real parties over a wire, a disk and a clock that a seeded nemesis disturbs."""
