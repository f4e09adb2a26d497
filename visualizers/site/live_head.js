/**
 * In a notebook's frame, before marimo's own scripts: tells the page around it how far the kernel is, and when it
 * is lost. The page gets {type: "hb-kernel", stage: "page" | "python" | "packages" | "kernel" | "cells" | "ready" |
 * "lost", done, of}.
 */
(() => {
  if (parent === self) return;
  const tell = (stage, counts) => parent.postMessage({ type: "hb-kernel", stage, ...counts }, location.origin);
  let cells = 0;
  let done = new Set();

  /** What the kernel says, as text; read until its first run is over, and no longer. */
  const hear = (text) => {
    if (text.startsWith('{"op": "kernel-ready"')) {
      cells = JSON.parse(text).data.cell_ids.length;
      done = new Set();
      tell("cells", { done: 0, of: cells });
    } else if (cells && text.startsWith('{"op": "cell-op"')) {
      const { cell_id: cell, status } = JSON.parse(text).data;
      if (status === "idle") tell("cells", { done: done.add(cell).size, of: cells });
    } else if (cells && text.startsWith('{"op": "completed-run"')) {
      cells = 0;
      tell("ready");
    }
  };

  globalThis.WebSocket = class extends WebSocket {
    constructor(...given) {
      super(...given);
      if (!new URL(this.url).pathname.endsWith("/ws")) return;
      this.addEventListener("open", () => tell("kernel"));
      this.addEventListener("message", ({ data }) => typeof data === "string" && hear(data));
      this.addEventListener("close", () => tell("lost"));
    }
  };

  const SAID = { "Loading marimo...": "python", "Loading notebook and dependencies...": "packages" };
  globalThis.Worker = class extends Worker {
    constructor(...given) {
      super(...given);
      if (!/\/worker-[^/]*$/.test(String(given[0]))) return;
      this.addEventListener("message", ({ data }) => {
        // A lock is let go when its worker is gone, however that came about; no event says so.
        if (data?.hbLock) navigator.locks?.request(data.hbLock, () => tell("lost"));
        const { id, payload } = data?.data ?? {};
        if (id === "initializingMessage" && SAID[payload?.message]) tell(SAID[payload.message]);
        if (id === "kernelMessage") hear(payload.message);
      });
      this.addEventListener("error", () => tell("lost"));
    }
  };

  tell("page");
})();
