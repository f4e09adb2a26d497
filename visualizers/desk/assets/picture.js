/** The desk as a picture to keep: every plot, with title, settings, machine and date. */

const LINE = 18;
const PAD = 16;

export function picture(look, title, lines, columns) {
  const ratio = devicePixelRatio || 1;
  const widths = columns.map((column) => Math.max(...column.map((one) => one.canvas.width / ratio)));
  const heights = columns.map((column) => column.reduce((sum, one) => sum + LINE + one.canvas.height / ratio + 8, 0));
  const width = widths.reduce((a, b) => a + b, 0) + PAD * (columns.length + 1);
  const height = PAD * 2 + LINE * (lines.length + 1.5) + Math.max(...heights);
  const canvas = document.createElement("canvas");
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const g = canvas.getContext("2d");
  g.scale(ratio, ratio);
  g.fillStyle = look.colour("page");
  g.fillRect(0, 0, width, height);
  g.fillStyle = look.colour("text");
  g.font = `600 15px ${look.font}`;
  g.fillText(title, PAD, PAD + 12, width - 2 * PAD);
  g.font = `11px ${look.font}`;
  g.fillStyle = look.colour("muted");
  lines.forEach((line, i) => g.fillText(line, PAD, PAD + 12 + LINE * (i + 1), width - 2 * PAD));
  let x = PAD;
  columns.forEach((column, c) => {
    let y = PAD + LINE * (lines.length + 1.5);
    for (const one of column) {
      g.fillStyle = look.colour("text");
      g.fillText(`${one.title}: ${one.keys.replace(/\s+/g, " ").trim()}`, x, y + 11, widths[c]);
      g.drawImage(one.canvas, x, y + LINE, one.canvas.width / ratio, one.canvas.height / ratio);
      y += LINE + one.canvas.height / ratio + 8;
    }
    x += widths[c] + PAD;
  });
  return canvas;
}

/** Gives the reader a file. */
export function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
