"""torch2_all_reduce.py P [LARGEST] [ROUNDS]: the bus bandwidth of torch.distributed.all_reduce over
gloo between P processes on this machine, as bench/peers/all_reduce.c measures that of evenkeel and MPI:
f32, 1 MiB to LARGEST (256) MiB, the median of ROUNDS (11) calls, each as long as its slowest process."""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, processes, largest, rounds):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK=str(rank), WORLD_SIZE=str(processes))
    dist.init_process_group("gloo")
    mib = 1
    while mib <= largest:
        values = torch.zeros((mib << 20) // 4)
        seconds = []
        for _ in range(rounds + 1):  # the first is not counted
            dist.barrier()
            begun = time.perf_counter()
            dist.all_reduce(values)
            longest = torch.tensor([time.perf_counter() - begun], dtype=torch.float64)
            dist.all_reduce(longest, op=dist.ReduceOp.MAX)
            seconds.append(longest.item())
        rate = (mib << 20) * 2 * (processes - 1) / processes / statistics.median(seconds[1:]) / 1e9
        if rank == 0:
            print(f"{mib:8d} {rate:14.3f}", flush=True)
        mib *= 4
    dist.destroy_process_group()


if __name__ == "__main__":
    count = int(sys.argv[1])
    most = int(sys.argv[2]) if len(sys.argv) > 2 else 256
    calls = int(sys.argv[3]) if len(sys.argv) > 3 else 11
    mp.spawn(work, args=(count, most, calls), nprocs=count)
