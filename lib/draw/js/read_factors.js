// Products of numbers as people write them: 1e6, 1,000,000, 3/4, 2 * 4 * 1024, 2^20.

// Reads factors: 2 * 3/4 * 2^10; gives their product and the text after it.
export function readProduct(text) {
  let rest = text, value = 1, isDivided = false, isRead = false;
  for (;;) {
    const [factor, after, comma] = power(rest);
    if (comma) return { comma };
    if (factor === null) return { isRead: false };
    value = isDivided ? value / factor : value * factor;
    [isRead, rest] = [true, after];
    const sign = /^\s*(\*(?!\*)|×|·|\/|x(?=\s*\d))\s*(?=[\d.+-])/.exec(rest);
    if (!sign) return { isRead, value, rest: rest.trim() };
    isDivided = sign[1] === "/";
    rest = rest.slice(sign[0].length);
  }
}

// One number, and its power where one follows: 2^20.
function power(text) {
  const [base, rest, comma] = plainNumber(text);
  const sign = base !== null && /^\s*(\^|\*\*)\s*/.exec(rest);
  if (!sign) return [base, rest, comma];
  const [exponent, after, wrong] = plainNumber(rest.slice(sign[0].length));
  return [exponent === null ? null : base ** exponent, after, wrong];
}

// A number without a power, and the text after it; `true` where a comma stands wrongly.
function plainNumber(text) {
  const number =
    /^[+-]?(?=\.?\d)(?:\d{1,3}(?:[,_'\u00a0\u202f ]\d{3})+(?!\d)|\d*)(?:\.\d*)?(?:e[+-]?\d+)?/i
      .exec(text);
  if (!number) return [null, text];
  const rest = text.slice(number[0].length);
  if (/^[,.]\d/.test(rest)) return [null, text, rest[0] === ","];
  return [Number(number[0].replaceAll(/[,_'\u00a0\u202f ]/g, "")), rest];
}
