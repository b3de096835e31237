// Browsers start no worker from a file:// page, and the search runs in a worker. On such
// pages this stand-in loads the worker's script into a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      // What the script posts comes out here, as a message of this worker.
      this.inside.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }))
      const script = frame.contentDocument.createElement("script")
      script.src = new URL(url, document.baseURI)
      this.loaded = new Promise((done) => script.addEventListener("load", done))
      frame.contentDocument.body.append(script)
    }

    postMessage(data) {
      this.loaded.then(() =>
        this.inside.dispatchEvent(new MessageEvent("message", { data })),
      )
    }

    terminate() {
      this.inside.frameElement.remove()
    }
  }
}
