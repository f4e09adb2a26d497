/**
 * How a notebook's frame looks: in the page's type, colours and theme, without marimo's own marks, at its own
 * height. The frame is of this site, so its document can be reached.
 */

const STILL_PX = 160; // a figure that redraws is lower for a moment: the page below must not jump

// What marimo lays over any notebook: its mark, an hourglass, a veil where the kernel is lost. The panel's bar says it.
const MARKS = `[data-testid="watermark"], [data-testid="loading-indicator"], [data-testid="disconnected-indicator"],
  .disconnected-gradient, .noise`;

// In a notebook that runs: its menu covers controls, and a tree of values is for whoever writes notebooks.
const RUN_STYLE = `
  html, body, #root, #App { background: transparent !important; min-height: 0 !important; height: auto !important; }
  html { overflow: auto hidden !important; } /* the page scrolls, not the frame */
  .marimo-cell, .output-area { background: transparent !important; }
  #App { min-height: 0 !important; height: auto !important; overflow: visible !important; padding: 0 !important; }
  #App > div { padding: 4px 12px 12px !important; }
  #App > div > div { padding-bottom: 0 !important; }
  ${MARKS}, [data-testid="notebook-actions-dropdown"], [data-testid="static-notebook-dialog-trigger"],
  .output-area > marimo-json-output { display: none !important; }
`;

// In the editor: what writes, runs, adds and removes cells is kept, its panels, menus and services are not.
const EDIT_STYLE = `
  ${MARKS}, [data-testid="chrome-footer"], [data-testid="chrome-sidebar"], [data-testid="helper"],
  [data-testid="chrome-controls-top-right"], [data-testid="save-button"], [data-testid="hide-code-button"],
  [data-testid="command-palette-button"], [data-testid="backend-status"],
  #App :has(> [data-testid="dir-completion-input"]), [data-testid="dir-completion-input"],
  [class*="ai-"][data-testid] { display: none !important; }
`;

/** Puts the page's look into the frame's document, once. */
export function dress(inside, editing) {
  if (inside.getElementById("hbl-style")) return false;
  const style = inside.createElement("style");
  style.id = "hbl-style";
  style.textContent = `${fonts()}${editing ? EDIT_STYLE : RUN_STYLE}`;
  inside.head.append(style);
  return true;
}

/** marimo takes its three fonts from variables: here they are the page's. */
function fonts() {
  const page = getComputedStyle(document.body);
  const [sans, mono] = ["--hb-sans", "--hb-mono"].map((name) => page.getPropertyValue(name).trim());
  if (!sans) return "";
  return `:root { --marimo-text-font: ${sans}; --marimo-heading-font: ${sans}; --marimo-monospace-font: ${mono};
    --text-font: ${sans}; --heading-font: ${sans}; --monospace-font: ${mono}; }`;
}

/** The frame in the page's theme. */
export function paint(inside) {
  if (!inside?.body) return;
  const dark = document.body.dataset.mdColorScheme === "slate";
  const kind = dark ? "vscode-dark" : "vscode-light";
  if (inside.body.dataset.vscodeThemeKind === kind) return;
  inside.body.dataset.vscodeThemeKind = kind;
  inside.documentElement.style.colorScheme = dark ? "dark" : "light";
}

/** Gives the frame the height of what is in it; returns that height, 0 where it stays as it is. */
export function fit(iframe, app) {
  const height = Math.ceil(app.scrollHeight);
  const now = iframe.clientHeight;
  if (height <= now && height >= now - STILL_PX) return 0;
  iframe.style.height = `${height}px`;
  return height;
}
