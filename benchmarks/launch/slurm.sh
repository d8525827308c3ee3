#!/bin/bash
# sbatch --nodes=4 slurm.sh FOLDER: one process a node, all GPUs of it. See README.md.
#SBATCH --job-name=dpjax
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

set -eu
folder=$1 # on a disk that all nodes share

# The key: made once, kept secret, and the same when Slurm starts the job again.
umask 077
[ -s "$folder/key" ] || {
  head -c 8 /dev/urandom > "$folder/.key"
  mv "$folder/.key" "$folder/key"
}

# Without this JAX gives a process of Slurm one device.
export JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((${SLURM_GPUS_ON_NODE:-1} - 1)))

# JAX reads the coordinator, the number of processes and their ranks from Slurm. A
# process that fails ends the others, and the job is put back into the queue.
srun --kill-on-bad-exit=1 python train.py \
  --features "$folder/features.npy" --targets "$folder/targets.npy" \
  --folder "$folder" --epsilon 1 --delta 1e-6 || {
  [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ] && scontrol requeue "$SLURM_JOB_ID"
  exit 1
}
