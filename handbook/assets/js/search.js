// How the page's search reads a query: the twin of `Words` in `visualizers/site/searching.py`, put before the theme's
// own search worker by the build. It knows the book by its index alone.

self.hbQuery = (() => {
  const WORD = /[a-z0-9]+/g;
  const OPERATORS = /["+~^:*]|(^|\s)-\w/;
  const DEFINES = /^\W*(what(s|'s)?\s+(is|are|does)|whats|what's|define)\b|\b(mean|meaning|definition)\b/;
  const SHORTEST = 4;
  const [KEY_WEIGHT, DEFINE_WEIGHT] = [8, 24];
  const ENTITIES = { amp: "&", lt: "<", gt: ">" };
  let known;

  const read = ({ words }, docs) => {
    const counts = new Map();
    const count = (word) => counts.set(word, (counts.get(word) ?? 0) + 1);
    const text = (html) => html.replace(/&(?:#(\d+)|(amp|lt|gt));/g, (_, code, name) => (code ? String.fromCodePoint(code) : ENTITIES[name]));
    for (const { title, text: body } of docs) for (const word of text(`${title} ${body}`).toLowerCase().match(WORD) ?? []) count(word);
    for (const word of words.spelt) count(word);
    return { ...words, dropped: new Set(words.dropped), counts };
  };

  const contentWords = (text) => {
    const words = text.toLowerCase().match(WORD) ?? [];
    const kept = words.filter((word) => !known.dropped.has(word));
    return kept.length ? kept : words;
  };

  const joined = (words) => words.map((w) => (w.length > 3 && w.endsWith("s") && !w.endsWith("ss") ? w.slice(0, -1) : w)).join("");

  const distance = (a, b, most) => {
    if (Math.abs(a.length - b.length) > most) return most + 1;
    let [two, before, row] = [[], [], Array.from({ length: b.length + 1 }, (_, i) => i)];
    for (let i = 1; i <= a.length; i += 1) {
      [two, before, row] = [before, row, [i]];
      for (let j = 1; j <= b.length; j += 1) {
        let best = Math.min(before[j] + 1, row[j - 1] + 1, before[j - 1] + Number(a[i - 1] !== b[j - 1]));
        if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) best = Math.min(best, two[j - 2] + 1);
        row.push(best);
      }
    }
    return Math.min(row.at(-1), most + 1);
  };

  const before = (a, b) => {
    for (let i = 0; i < a.length; i += 1) if (a[i] !== b[i]) return a[i] < b[i];
    return false;
  };

  const mended = (word) => {
    if (word.length < SHORTEST || !/^[a-z]+$/.test(word) || known.counts.has(word)) return word;
    for (const other of known.counts.keys()) if (other.startsWith(word)) return word;
    const most = word.length <= 5 ? 1 : 2;
    let best = null;
    for (const [other, count] of known.counts) {
      if (other.length < 4) continue;
      const found = [distance(word, other, most), Number(other[0] !== word[0]), -count, other];
      if (found[0] <= most && (!best || before(found, best))) best = found;
    }
    return best ? best[3] : word;
  };

  /** The query in the book's words. `config` and `docs` are those of the index. */
  return (text, config, docs) => {
    if (!config.words || OPERATORS.test(text)) return text;
    known ??= read(config, docs);
    const words = contentWords(text).map(mended);
    const keys = [];
    for (let at = 0; at < words.length; at += 1) {
      for (let end = Math.min(words.length, at + known.longest); end > at; end -= 1) {
        const topics = known.phrases[joined(words.slice(at, end))];
        if (!topics) continue;
        for (const key of topics) if (!keys.includes(key)) keys.push(key);
        at = end - 1;
        break;
      }
    }
    const weighed = keys.map((key) => `${key}^${KEY_WEIGHT}`);
    if (DEFINES.test(text.toLowerCase())) {
      for (const key of keys) if (key.startsWith("term_")) weighed.push(`${key.replace("term_", "define_")}^${DEFINE_WEIGHT}`);
    }
    return [...words.filter((word) => word.length > 1 || words.length === 1), ...weighed].join(" ");
  };
})();
