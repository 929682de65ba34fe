# The image for the CronJob of k8s/components/learning: the learning loop with torch for CPUs, and the client of tandem:cpu.
# transformers is for heads and for --target, boto3 for spools in an object store.
#
#   docker build -f deploy/docker/Dockerfile -t tandem:cpu .
#   docker build -f deploy/docker/trainer.Dockerfile -t tandem-trainer .
FROM tandem:cpu
USER 0:0
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/trainer \
 && /opt/trainer/bin/pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch \
 && /opt/trainer/bin/pip install --no-cache-dir numpy cryptography safetensors tokenizers transformers boto3
COPY deploy/demo-models/train /opt/tandem/demo-models/train
COPY deploy/learning /opt/tandem/learning
ENV PATH=/opt/tandem/learning:/opt/trainer/bin:$PATH
USER 65532:65532
CMD ["tandem-learn", "--help"]
