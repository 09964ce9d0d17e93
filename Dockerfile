# docker build -t shardplan .
# docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" shardplan solve model.onnx --mesh 4x4
FROM python:3.12-slim
COPY . /src
RUN pip install --no-cache-dir /src && rm -rf /src
WORKDIR /work
ENTRYPOINT ["shardplan"]
