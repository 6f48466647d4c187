"""What touches the outside: clock, disk, sockets, threads and ZooKeeper, each behind a protocol of the core."""
